"""The running daemon: which rooms are joined how, what its life looks like, and what it says about itself."""
