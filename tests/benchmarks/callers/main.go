// Callers of many rooms in one process, as light as callers are for the machine that answers them: sound that is
// encoded already is sent while they speak and nothing else, and what they hear is received and not decoded.
//
// Reads its orders from stdin, one JSON object; tells what it did on stdout, one JSON object a line: "there" when every
// caller has been greeted, "done" when each has said all it has to and read the answers. Leaves when stdin ends.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/livekit/protocol/livekit"
	"github.com/livekit/protocol/logger"
	lksdk "github.com/livekit/server-sdk-go/v2"
	"github.com/pion/webrtc/v4"
	"github.com/pion/webrtc/v4/pkg/media"
)

const (
	packet    = 20 * time.Millisecond
	patience  = 60 * time.Second
	chat      = "lk.chat"
	lines     = "lk.transcription"
	clockRate = 48000
	attempts  = 3
)

type orders struct {
	URL   string   `json:"url"`
	Sound [][]byte `json:"sound"` // Opus packets of 20 ms: what is said in each spoken turn
	Calls []call   `json:"calls"`
}

type call struct {
	Identity string    `json:"identity"`
	Token    string    `json:"token"`
	JoinS    float64   `json:"join_s"`
	Types    []string  `json:"types"`   // what is typed in each turn; spoken where there is none
	TurnsS   []float64 `json:"turns_s"` // when each turn begins, from when all are there; not before its reply
}

type caller struct {
	call
	sound [][]byte
	track *lksdk.LocalTrack
	room  *lksdk.Room
	read  chan struct{}
}

// Joins, once more where the machine was too busy to connect in time.
func (c *caller) join(url string) (err error) {
	for range attempts {
		if err = c.attempt(url); err == nil {
			return nil
		}
	}
	return fmt.Errorf("%s can't join: %w", c.Identity, err)
}

func (c *caller) attempt(url string) error {
	c.read = make(chan struct{}, 64)
	c.room = lksdk.NewRoom(lksdk.NewRoomCallback())
	if err := c.room.RegisterTextStreamHandler(lines, c.onLine); err != nil {
		return err
	}
	if err := c.room.JoinWithToken(url, c.Token); err != nil {
		return err
	}
	if len(c.Types) > 0 {
		return nil
	}
	opus := webrtc.RTPCodecCapability{MimeType: webrtc.MimeTypeOpus, ClockRate: clockRate, Channels: 2}
	track, err := lksdk.NewLocalTrack(opus)
	if err != nil {
		return err
	}
	c.track = track
	options := &lksdk.TrackPublicationOptions{Name: "microphone", Source: livekit.TrackSource_MICROPHONE}
	_, err = c.room.LocalParticipant.PublishTrack(track, options)
	return err
}

// A line of the agent's is over with its stream; what the caller is taken to say comes under the caller's own name.
func (c *caller) onLine(reader *lksdk.TextStreamReader, identity string) {
	if identity == c.Identity {
		return
	}
	go func() {
		reader.ReadAll()
		c.read <- struct{}{}
	}()
}

func (c *caller) reads() error {
	select {
	case <-c.read:
		return nil
	case <-time.After(patience):
		return fmt.Errorf("%s waited in vain for a line of the agent", c.Identity)
	}
}

func (c *caller) turn(number int) error {
	if c.track == nil {
		c.room.LocalParticipant.SendText(c.Types[number], lksdk.StreamTextOptions{Topic: chat})
		return c.reads()
	}
	next := time.Now()
	for _, data := range c.sound {
		if err := c.track.WriteSample(media.Sample{Data: data, Duration: packet, Timestamp: next}, nil); err != nil {
			return err
		}
		next = next.Add(packet)
		time.Sleep(time.Until(next))
	}
	return c.reads()
}

func (c *caller) talk(begun time.Time) error {
	for number, atS := range c.TurnsS {
		time.Sleep(time.Until(begun.Add(seconds(atS))))
		if err := c.turn(number); err != nil {
			return err
		}
	}
	return nil
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// Does the same with all callers at once; ends the process where one fails.
func all(callers []*caller, what func(*caller) error) {
	var group sync.WaitGroup
	for _, each := range callers {
		group.Go(func() {
			if err := what(each); err != nil {
				fmt.Fprintln(os.Stderr, err)
				os.Exit(1)
			}
		})
	}
	group.Wait()
}

func tell(event string) { fmt.Printf("{\"event\": %q}\n", event) }

func main() {
	logger.InitFromConfig(&logger.Config{Level: "error"}, "callers")
	lksdk.SetLogger(logger.GetLogger())
	input := bufio.NewReader(os.Stdin)
	var told orders
	if err := json.NewDecoder(input).Decode(&told); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	callers := make([]*caller, len(told.Calls))
	for number, each := range told.Calls {
		callers[number] = &caller{call: each, sound: told.Sound}
	}
	begun := time.Now()
	all(callers, func(c *caller) error {
		time.Sleep(time.Until(begun.Add(seconds(c.JoinS))))
		if err := c.join(told.URL); err != nil {
			return err
		}
		return c.reads()
	})
	tell("there")
	begun = time.Now()
	all(callers, func(c *caller) error { return c.talk(begun) })
	tell("done")
	_, _ = io.Copy(io.Discard, os.Stdin)
	for _, each := range callers {
		each.room.Disconnect()
	}
}
