"""The global parameter server (Adam, section 3.3): the layout, the server role, the client."""
