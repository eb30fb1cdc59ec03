"""What a reader sees of a run: figures and tables, drawn from its files and never from a simulator."""
