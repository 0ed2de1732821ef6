"""The processes that train one model together: their groups, what they tell each other, how they are started."""
