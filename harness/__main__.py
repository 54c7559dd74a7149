from mmrepro.cli import main

main()
