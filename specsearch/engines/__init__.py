"""Engines: how a configuration becomes a server, and what the server says."""
