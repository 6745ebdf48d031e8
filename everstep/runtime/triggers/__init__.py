"""What starts jobs from outside: events over HTTP, mail, and files, stored first and handled then."""
