"""What a dead process left: scan -> decide -> execute, for whoever resumes, takes over, recovers, or only
looks."""
