"""Messages on the wire: protobuf's format, written and read by a codec that pins no protobuf."""
