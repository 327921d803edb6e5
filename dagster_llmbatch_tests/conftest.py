"""Fixtures for all tests."""

from dagster_llmbatch_tests.postgres import module_postgres_url, postgres_server, postgres_url

__all__ = ["module_postgres_url", "postgres_server", "postgres_url"]
