"""Configuration of tables: initial values, admission, expiry (TTL), hyper-parameters."""
