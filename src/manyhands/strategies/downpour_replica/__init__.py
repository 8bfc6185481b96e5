"""The process of one replica: its workers, and the exchange with the servers."""
