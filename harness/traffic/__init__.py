"""What is sent to an engine: the HTTP client, a scenario's hands, pictures."""

from mmrepro.traffic.client import Traffic as Traffic
