"""The only room that touches storage: SQL tables with migrations, and Parquet segments."""
