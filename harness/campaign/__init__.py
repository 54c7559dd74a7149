"""A campaign of any kind: what it asks for, the places that do it, and what is written
down."""
