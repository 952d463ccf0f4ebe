"""Push-downs: JSON values decoded to typed columns, and aggregated, in the read tasks."""
