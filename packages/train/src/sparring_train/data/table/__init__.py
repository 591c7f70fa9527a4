"""Data of kind `table`: rows of CSV and Parquet files."""
