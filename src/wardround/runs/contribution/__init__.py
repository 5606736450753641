"""What each hospital adds: coalitions that train, models that are put together from updates, and what follows."""
