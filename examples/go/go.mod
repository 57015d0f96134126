module example

go 1.26.0

require prezero v0.0.0

replace prezero => ../../go
