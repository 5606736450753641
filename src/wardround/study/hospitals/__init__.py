"""What a study says of single hospitals: whose updates are compared, and what each one adds."""
