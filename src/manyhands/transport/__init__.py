"""How processes reach each other: shared memory, sockets, TLS. Nothing above knows sockets."""
