"""What tests share: graphs to run, worker processes to kill, a person to answer."""
