"""What is said of single hospitals: whose updates differ, what each adds."""
