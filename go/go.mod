module prezero

go 1.26.0
