"""The broker's settings: the table, where values come from, and the page that lists them."""
