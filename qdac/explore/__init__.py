"""The explorer: a local page where a click on the skill space makes the robot execute that skill."""
