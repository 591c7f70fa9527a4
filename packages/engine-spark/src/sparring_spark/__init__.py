"""Ids of strings on Apache Spark, as the training and the servers compute them."""

from sparring_spark.ids import hash_strings

__all__ = ["hash_strings"]
