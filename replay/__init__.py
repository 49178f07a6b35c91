"""What plans would cost."""
