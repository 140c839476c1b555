"""What is looked at only now and then, and how often that may be."""
