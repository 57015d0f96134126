// SPDX-License-Identifier: Apache-2.0 OR MIT

// Image writes the image of one static program, as an archive that containerd, podman and skopeo
// read.
//
//	go run . PROGRAM NAME:TAG ARCHIVE
//
// The layer holds the program alone, as /NAME-OF-THE-FILE. The image records no time and no machine:
// the same program is the same image. Its architecture is the program's. Of a Go program the modules that it
// was built from are written beside the archive, as ARCHIVE.spdx.json (SPDX 2.3).
package main

import (
	"archive/tar"
	"bytes"
	"debug/elf"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

func main() {
	if len(os.Args) != 4 {
		fmt.Fprintln(os.Stderr, "usage: image PROGRAM NAME:TAG ARCHIVE")
		os.Exit(2)
	}
	if err := write(os.Args[1], os.Args[2], os.Args[3]); err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

func write(program, tag, archive string) error {
	image, err := imageOf(program)
	if err != nil {
		return err
	}
	ref, err := name.NewTag(tag)
	if err != nil {
		return err
	}
	if err := tarball.WriteToFile(archive, ref, image); err != nil {
		return err
	}
	return writeBill(program, tag, archive+".spdx.json")
}

// architecture of a program, as images name it; that of this machine for what is no program of Linux.
func architecture(program string) string {
	file, err := elf.Open(program)
	if err != nil {
		return runtime.GOARCH
	}
	defer file.Close()
	switch file.Machine {
	case elf.EM_X86_64:
		return "amd64"
	case elf.EM_AARCH64:
		return "arm64"
	default:
		return runtime.GOARCH
	}
}

// imageOf is the image whose only file and entry point is the program.
func imageOf(program string) (v1.Image, error) {
	content, err := os.ReadFile(program)
	if err != nil {
		return nil, err
	}
	file := filepath.Base(program)
	var files bytes.Buffer
	layer := tar.NewWriter(&files)
	if err := layer.WriteHeader(&tar.Header{Name: file, Mode: 0o755, Size: int64(len(content))}); err != nil {
		return nil, err
	}
	if _, err := layer.Write(content); err != nil {
		return nil, err
	}
	if err := layer.Close(); err != nil {
		return nil, err
	}
	open := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(files.Bytes())), nil }
	made, err := tarball.LayerFromOpener(open)
	if err != nil {
		return nil, err
	}
	image, err := mutate.AppendLayers(empty.Image, made)
	if err != nil {
		return nil, err
	}
	config, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.Architecture, config.OS = architecture(program), "linux"
	config.Config.Entrypoint = []string{"/" + file}
	return mutate.ConfigFile(image, config)
}
