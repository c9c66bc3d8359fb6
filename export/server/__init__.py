"""The local server, for development: REST and gRPC."""
