"""The web process: status page, metrics, and stores for viewers. It imports no room of the daemon but
``model``, ``array.document``, the control client and its own settings; what contrast.py needs of others runs
in a process of its own."""
