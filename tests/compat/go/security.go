package main

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"os"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/oauth"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

// security returns TLS and SASL of a broker that requires them.
func security() []kgo.Opt {
	given := os.Getenv("COMPAT_SECURITY")
	if given == "" {
		return nil
	}
	var login struct{ Trusted, Mechanism, User, Secret string }
	check(json.Unmarshal([]byte(given), &login))
	trusted, err := os.ReadFile(login.Trusted)
	check(err)
	authorities := x509.NewCertPool()
	authorities.AppendCertsFromPEM(trusted)
	user := scram.Auth{User: login.User, Pass: login.Secret}
	mechanism := map[string]sasl.Mechanism{
		"PLAIN":         plain.Auth{User: login.User, Pass: login.Secret}.AsMechanism(),
		"SCRAM-SHA-256": user.AsSha256Mechanism(),
		"SCRAM-SHA-512": user.AsSha512Mechanism(),
		"OAUTHBEARER":   oauth.Auth{Token: login.Secret}.AsMechanism(),
	}[login.Mechanism]
	return []kgo.Opt{
		kgo.SASL(mechanism),
		kgo.DialTLSConfig(&tls.Config{RootCAs: authorities}),
		kgo.RetryTimeout(5 * time.Second),
		kgo.RequestRetries(2),
	}
}

// session writes two records; the session ends between them.
func session() {
	create(1, topic)
	writing := client(kgo.DefaultProduceTopic(topic))
	defer writing.Close()
	pause, err := strconv.Atoi(os.Args[4])
	check(err)
	check(writing.ProduceSync(ctx, kgo.StringRecord("before")).FirstErr())
	time.Sleep(time.Duration(pause) * time.Millisecond)
	check(writing.ProduceSync(ctx, kgo.StringRecord("after")).FirstErr())
	reading := client(kgo.ConsumeTopics(topic))
	defer reading.Close()
	printLine(fields{"values": values(read(reading, 2))})
}

func acls() {
	acl := kadm.NewACLs().Topics(topic).Allow("User:eve").AllowHosts("*").Operations(kadm.OpRead)
	acl = acl.ResourcePatternType(kmsg.ACLResourcePatternTypePrefixed)
	created, err := admin.CreateACLs(ctx, acl)
	check(err)
	check(created[0].Err)
	printLine(fields{"created": len(created)})
	described, err := admin.DescribeACLs(ctx, acl)
	check(err)
	printLine(fields{"described": described[0].Described[0].Principal})
	deleted, err := admin.DeleteACLs(ctx, acl)
	check(err)
	printLine(fields{"deleted": len(deleted[0].Deleted)})
}
