// SPDX-License-Identifier: Apache-2.0 OR MIT

package main

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

func TestBillAndArchitectureAreThoseOfTheProgram(t *testing.T) {
	dir := t.TempDir()
	// This test is a Go program with modules.
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	archive := filepath.Join(dir, "one.tar")
	if err := write(self, "localhost/a/b:1.2", archive); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(archive + ".spdx.json")
	if err != nil {
		t.Fatal(err)
	}
	var bill struct {
		SPDXVersion, DocumentNamespace string
		Packages                       []struct{ Name, VersionInfo string }
		Relationships                  []struct{ RelationshipType string }
	}
	if err := json.Unmarshal(text, &bill); err != nil {
		t.Fatal(err)
	}
	found := map[string]string{}
	for _, one := range bill.Packages {
		found[one.Name] = one.VersionInfo
	}
	if bill.SPDXVersion != "SPDX-2.3" || found["github.com/google/go-containerregistry"] == "" || found["stdlib"] == "" || len(bill.Relationships) < len(bill.Packages) {
		t.Errorf("%s", text)
	}
	if err := write(self, "localhost/a/b:1.2", filepath.Join(dir, "two.tar")); err != nil {
		t.Fatal(err)
	}
	if again, err := os.ReadFile(filepath.Join(dir, "two.tar.spdx.json")); err != nil || !bytes.Equal(again, text) {
		t.Errorf("two bills of one program differ: %v", err)
	}
	// The header of an ELF program of arm64, and no more.
	header := append([]byte("\x7fELF\x02\x01\x01"), make([]byte, 57)...)
	header[16], header[18], header[20], header[52] = 2, 183, 1, 64
	other := filepath.Join(dir, "other")
	if err := os.WriteFile(other, header, 0o755); err != nil {
		t.Fatal(err)
	}
	if found := architecture(other); found != "arm64" {
		t.Errorf("a program of arm64 is of %s", found)
	}
}

func TestImageRunsItsOneProgramAndIsTheSameEachTime(t *testing.T) {
	dir := t.TempDir()
	program := filepath.Join(dir, "program")
	if err := os.WriteFile(program, []byte("#!"), 0o755); err != nil {
		t.Fatal(err)
	}
	made := func(archive string) []byte {
		archive = filepath.Join(dir, archive)
		if err := write(program, "localhost/a/b:1.2", archive); err != nil {
			t.Fatal(err)
		}
		content, err := os.ReadFile(archive)
		if err != nil {
			t.Fatal(err)
		}
		return content
	}
	if !bytes.Equal(made("one.tar"), made("two.tar")) {
		t.Fatal("two archives of one program differ")
	}
	tag, err := name.NewTag("localhost/a/b:1.2")
	if err != nil {
		t.Fatal(err)
	}
	image, err := tarball.ImageFromPath(filepath.Join(dir, "one.tar"), &tag)
	if err != nil {
		t.Fatal(err)
	}
	config, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if config.OS != "linux" || config.Architecture != runtime.GOARCH {
		t.Errorf("%s/%s", config.OS, config.Architecture)
	}
	if entry := config.Config.Entrypoint; len(entry) != 1 || entry[0] != "/program" {
		t.Errorf("entry point %v", entry)
	}
	if !config.Created.IsZero() {
		t.Errorf("made at %v", config.Created)
	}
	layers, err := image.Layers()
	if err != nil || len(layers) != 1 {
		t.Fatalf("%d layers, %v", len(layers), err)
	}
	open, err := layers[0].Uncompressed()
	if err != nil {
		t.Fatal(err)
	}
	files := tar.NewReader(open)
	header, err := files.Next()
	if err != nil || header.Name != "program" || header.Mode != 0o755 {
		t.Fatalf("%+v, %v", header, err)
	}
	if content, err := io.ReadAll(files); err != nil || string(content) != "#!" {
		t.Fatalf("%q, %v", content, err)
	}
	if _, err := files.Next(); err != io.EOF {
		t.Fatal("another file")
	}
}
