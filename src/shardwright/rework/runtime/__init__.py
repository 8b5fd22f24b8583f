"""One restartable job: tasks, executors, throttle, pause, work folder, report."""
