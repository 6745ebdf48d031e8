"""What only Everstep has, under `/everstep`: jobs, reviews, effects, dead letters, schedules, triggers, services."""
