"""What a log says: facts while it runs, and the cause of its end."""
