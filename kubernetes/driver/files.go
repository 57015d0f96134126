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
	// Loans by their names, before the first is asked for. Drivers of before did not say.
	Loans []string `json:"loans,omitempty"`
}

// scope of its loans. Before it was in the names, it was the namespace.
func (r record) scope() string {
	if len(r.Loans) == 0 {
		return r.Namespace
	}
	scope, _, _ := strings.Cut(r.Loans[0], "/")
	return scope
}

// names of the loans of a claim that an earlier call recorded: they stay what they are. Drivers of before
// wrote no mark, and those before them no names.
func (r record) names(uid types.UID, all []allotted) []string {
	if len(r.Loans) == len(all) {
		return r.Loans
	}
	var names []string
	for _, one := range all {
		names = append(names, fmt.Sprintf("%s/%s.%d", r.scope(), uid, one.index))
	}
	return names
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

// halfEnding is not one that a container runtime reads.
const halfEnding = ".half"

// write replaces a file in one step, so that a reader finds the old one or the new one, after a loss of
// power too.
func write(path string, content any) (failed error) {
	text, err := json.Marshal(content)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	half := path + halfEnding
	defer func() {
		if failed != nil {
			// On a full disk it would take room from the next one.
			os.Remove(half)
		}
	}()
	file, err := os.OpenFile(half, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = file.Write(text)
	if err := errors.Join(err, file.Sync(), file.Close()); err != nil {
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

// load reads all records. A full disk or a loss of power may leave an unreadable one. The driver
// serves all the same: the loans of that record are returned when the kubelet says so, and its name
// goes with them.
func (f files) load() (all map[types.UID]record, unread []error, err error) {
	all = map[types.UID]record{}
	entries, err := os.ReadDir(f.records)
	if errors.Is(err, os.ErrNotExist) {
		return all, nil, nil
	}
	if err != nil {
		return nil, nil, err
	}
	for _, entry := range entries {
		if !strings.HasSuffix(entry.Name(), ".json") {
			continue
		}
		one, isThere, err := f.read(types.UID(strings.TrimSuffix(entry.Name(), ".json")))
		if err != nil {
			unread = append(unread, err)
		} else if isThere {
			all[one.UID] = one
		}
	}
	return all, unread, nil
}

// read the record of one claim, if there is one.
func (f files) read(uid types.UID) (one record, isThere bool, err error) {
	text, err := os.ReadFile(f.record(uid))
	if errors.Is(err, os.ErrNotExist) {
		return record{}, false, nil
	}
	if err == nil {
		err = json.Unmarshal(text, &one)
	}
	if err == nil && one.UID != uid {
		err = fmt.Errorf("it is of %q", one.UID)
	}
	if err != nil {
		return record{}, false, fmt.Errorf("%s is no record of a claim: %w", filepath.Base(f.record(uid)), err)
	}
	return one, true, nil
}

// sweep removes specs without a record, which would stay for ever: a record is older than its spec,
// and goes after it.
func (f files) sweep() error {
	specs, err := filepath.Glob(f.spec("*"))
	if err != nil {
		return err
	}
	for _, path := range specs {
		uid := strings.TrimSuffix(strings.TrimPrefix(filepath.Base(path), Name+"-"), ".json")
		if _, err := os.Lstat(f.record(types.UID(uid))); !errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err := remove(path); err != nil {
			return err
		}
	}
	return nil
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

func device(name string, in place, host string, bytes int64) cdiDevice {
	return cdiDevice{name, cdiEdits{
		Env:    []string{in.variable + "=" + in.path, fmt.Sprintf("%s_BYTES=%d", in.variable, bytes)},
		Mounts: []cdiMount{{host, in.path, []string{"rw", "bind", "nosuid", "nodev", "noexec"}}},
	}}
}

// Library is what a launcher's container gets, by the paths on the node and in the container, which are one.
type Library struct {
	// Preload is the library's path, and Socket the daemon's for borrowers.
	Preload, Socket string
}

// launcher edits a container that borrows by itself. Several requests are one edit.
func (l Library) launcher(name string, isFirst bool) cdiDevice {
	edits := cdiEdits{Env: []string{}, Mounts: []cdiMount{}}
	if isFirst {
		dir := filepath.Dir(l.Preload)
		edits = cdiEdits{
			Env: []string{"LD_PRELOAD=" + l.Preload},
			Mounts: []cdiMount{
				{dir, dir, []string{"ro", "bind", "nosuid", "nodev"}},
				{l.Socket, l.Socket, []string{"rw", "bind", "nosuid", "nodev", "noexec"}},
			},
		}
	}
	return cdiDevice{name, edits}
}

// cdiKind is that of the driver's CDI devices, each of which is named <claim>-<index>.
const cdiKind = Name + "/memory"

func spec(devices []cdiDevice) map[string]any {
	return map[string]any{"cdiVersion": "0.6.0", "kind": cdiKind, "devices": devices}
}
