"""What is asked: environments and their tasks."""
