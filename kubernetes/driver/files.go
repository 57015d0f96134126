// SPDX-License-Identifier: Apache-2.0 OR MIT

package driver

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"k8s.io/apimachinery/pkg/types"
)

// record is what a later start must know of a claim: who it is, and what its loans count as. It is
// written before the first loan is asked for and removed after the last is returned, so that every
// loan of this driver's has one.
type record struct {
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	UID       types.UID `json:"uid"`
	// Bytes by device: the scheduler's ledger.
	Bytes map[string]int64 `json:"bytes"`
}

// files of the driver: records of its own, and CDI specs for the container runtime.
type files struct {
	records, cdi string
}

func (f files) record(uid types.UID) string {
	return filepath.Join(f.records, string(uid)+".json")
}

func (f files) spec(uid types.UID) string {
	return filepath.Join(f.cdi, Name+"-"+string(uid)+".json")
}

// write replaces a file in one step, so that a reader finds the old one or the new one.
func write(path string, content any) error {
	text, err := json.Marshal(content)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	// Not of the ending that a container runtime reads.
	half := path + ".half"
	if err := os.WriteFile(half, text, 0o600); err != nil {
		return err
	}
	return os.Rename(half, path)
}

func remove(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// load reads all records. What cannot be read is an error: its loans would be nobody's.
func (f files) load() (map[types.UID]record, error) {
	entries, err := os.ReadDir(f.records)
	if errors.Is(err, os.ErrNotExist) {
		return map[types.UID]record{}, nil
	}
	if err != nil {
		return nil, err
	}
	all := map[types.UID]record{}
	for _, entry := range entries {
		if !strings.HasSuffix(entry.Name(), ".json") {
			continue
		}
		text, err := os.ReadFile(filepath.Join(f.records, entry.Name()))
		if err != nil {
			return nil, err
		}
		var one record
		if err := json.Unmarshal(text, &one); err != nil || one.UID == "" {
			return nil, fmt.Errorf("%s is no record of a claim: %v", entry.Name(), err)
		}
		all[one.UID] = one
	}
	return all, nil
}

// cdiDevice is one loan as a container gets it.
type cdiDevice struct {
	Name  string   `json:"name"`
	Edits cdiEdits `json:"containerEdits"`
}

type cdiEdits struct {
	Env    []string   `json:"env"`
	Mounts []cdiMount `json:"mounts"`
}

type cdiMount struct {
	HostPath      string   `json:"hostPath"`
	ContainerPath string   `json:"containerPath"`
	Options       []string `json:"options"`
}

func device(name, inside, host string, bytes int64) cdiDevice {
	variable := "PREZERO_" + strings.ToUpper(strings.ReplaceAll(filepath.Base(inside), "-", "_"))
	return cdiDevice{name, cdiEdits{
		Env:    []string{variable + "=" + inside, fmt.Sprintf("%s_BYTES=%d", variable, bytes)},
		Mounts: []cdiMount{{host, inside, []string{"rw", "bind", "nosuid", "nodev", "noexec"}}},
	}}
}

func spec(devices []cdiDevice) map[string]any {
	return map[string]any{"cdiVersion": "0.6.0", "kind": Name + "/memory", "devices": devices}
}
