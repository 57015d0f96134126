// SPDX-License-Identifier: Apache-2.0 OR MIT

// Work BLOCKS MIB fills most of a heap three times, looks for bytes that are not zero, collects, and
// starts a program, which Java does by vfork.
public class Work {
    public static void main(String[] args) throws Exception {
        byte[][] blocks = new byte[Integer.parseInt(args[0])][];
        int bytes = Integer.parseInt(args[1]) << 20;
        long sum = 0;
        for (int round = 0; round < 3; round++) {
            for (int i = 0; i < blocks.length; i++) {
                blocks[i] = new byte[bytes];
                for (int j = 0; j < bytes; j += 4096) {
                    if (blocks[i][j] != 0) throw new Error("not zero");
                    blocks[i][j] = (byte) i;
                }
            }
            System.gc();
        }
        for (byte[] block : blocks) sum += block[4096];
        Process child = new ProcessBuilder("sh", "-c", "exit 5").start();
        System.out.println(sum + " " + child.waitFor());
    }
}
