"""One file per question, each paired with a peer; `make bench` runs all and writes the tables into README.md here."""
