#!/usr/bin/perl
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# qmp.pl SOCKET COMMAND [JSON]... - gives QEMU commands by QMP and prints what each returns
#
# JSON is the command's arguments without their braces. The first error ends it, and so does a QEMU
# that ends, unless `quit` was the command.
use strict;
use warnings;
use IO::Socket::UNIX;

my $path = shift;
my $qemu;
for (1 .. 600) {
	last if $qemu = IO::Socket::UNIX->new(Peer => $path);
	select undef, undef, undef, 0.1;
}
die "$path: $!\n" unless $qemu;
$qemu->autoflush(1);
<$qemu>;

sub tell_qemu {
	my ($command, $arguments) = @_;
	print $qemu qq({"execute": "$command", "arguments": {$arguments}}\n);
	while (my $answer = <$qemu>) {
		die "$command: $answer" if $answer =~ /^\{"error"/;
		return $answer if $answer =~ /^\{"return"/;
	}
	die "$command: QEMU has ended\n" unless $command eq 'quit';
	return '';
}

tell_qemu('qmp_capabilities', '');
while (@ARGV) {
	my ($command, $arguments) = splice @ARGV, 0, 2;
	print tell_qemu($command, $arguments // '');
}
