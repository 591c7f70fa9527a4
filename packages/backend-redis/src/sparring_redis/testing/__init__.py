"""Redis servers for tests: real ones, on loopback, with folders of their own, ended by their ids."""

from sparring_redis.testing.certificates import Certificates, make_certificates
from sparring_redis.testing.cluster import RedisCluster
from sparring_redis.testing.proxy import Fault, FaultProxy
from sparring_redis.testing.sentinel import RedisSentinel
from sparring_redis.testing.server import RedisServer, redis_server_missing

__all__ = [
    "Certificates",
    "Fault",
    "FaultProxy",
    "RedisCluster",
    "RedisSentinel",
    "RedisServer",
    "make_certificates",
    "redis_server_missing",
]
