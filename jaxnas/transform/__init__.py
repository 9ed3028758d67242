"""Makes a supernet of a network that knows nothing of jaxnas, whatever library it is written in."""
