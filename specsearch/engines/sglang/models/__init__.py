"""What lies on disk of target and drafter, and whether they fit each other."""
