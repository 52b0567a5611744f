"""A shop on the web: WebShop's pages and reward."""
