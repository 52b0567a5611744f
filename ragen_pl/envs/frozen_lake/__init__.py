"""FrozenLake: the environment, its planning and its pictures."""
