"""Push-downs: decoding of JSON values to typed columns, and their aggregation, in the read tasks."""
