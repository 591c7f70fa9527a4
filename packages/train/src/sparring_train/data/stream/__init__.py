"""Data of kind `stream`: sources, payloads and cuts."""
