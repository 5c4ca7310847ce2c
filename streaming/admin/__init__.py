"""The admin's pages of the gateway: providers and their test, models, routes, alarms, the configuration file."""

from streaming.admin import alarms, configuration_page, models, providers, routes

__all__ = ["alarms", "configuration_page", "models", "providers", "routes"]
