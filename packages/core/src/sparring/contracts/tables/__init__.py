"""Configuration of tables: initial values, admission, expiry, hyper-parameters."""
