"""Redis servers for tests: real processes on loopback, each with a separate folder."""

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
