//! Scenarios on the published Rust client. Arguments: host:port of the server, prefix of topics and groups, scenario
//! names. Prints one JSON line for each: name, saw. The runner makes the topics and groups, see scenarios.py. The client
//! has no push consumer, no change of invisible durations, no recall, no priorities and no TLS.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rocketmq::conf::{ClientOption, ProducerOption, SimpleConsumerOption};
use rocketmq::error::ClientError;
use rocketmq::model::common::{FilterExpression, FilterType};
use rocketmq::model::message::{MessageBuilder, MessageView};
use rocketmq::model::transaction::{Transaction, TransactionResolution};
use rocketmq::{Producer, SimpleConsumer};
use serde_json::{json, Value};

const PATIENCE: Duration = Duration::from_secs(30);
/// A gRPC channel may wait 120 s before it connects again.
const RESTART_PATIENCE: Duration = Duration::from_secs(150);
/// The shortest time that the official server accepts.
const INVISIBLE: Duration = Duration::from_secs(10);
/// The client allows no more time than this for a receive, and the official server waits 20 s at the most.
const POLL: Duration = Duration::from_secs(22);

type Saw = Result<Value, ClientError>;

struct Peer {
    endpoints: String,
    topic: String,
    group: String,
    account: Option<(String, String)>,
}

impl Peer {
    /// The same, for clients that use an account.
    fn signed_by(&self, account: Option<(&str, &str)>) -> Peer {
        Peer {
            endpoints: self.endpoints.clone(),
            topic: self.topic.clone(),
            group: self.group.clone(),
            account: account.map(|(name, secret)| (name.to_string(), secret.to_string())),
        }
    }

    fn client(&self) -> ClientOption {
        let mut option = ClientOption::default();
        option.set_access_url(self.endpoints.clone());
        option.set_enable_tls(false);
        option.set_long_polling_timeout(POLL);
        option.set_timeout(Duration::from_secs(10));
        if let Some((name, secret)) = &self.account {
            option.set_access_key(name.clone());
            option.set_secret_key(secret.clone());
        }
        option
    }

    fn topics(&self) -> ProducerOption {
        let mut option = ProducerOption::default();
        option.set_topics(vec![self.topic.clone()]);
        option
    }

    async fn producer(&self) -> Result<Producer, ClientError> {
        let mut producer = Producer::new(self.topics(), self.client())?;
        producer.start().await?;
        Ok(producer)
    }

    async fn consumer(&self) -> Result<SimpleConsumer, ClientError> {
        let mut option = SimpleConsumerOption::default();
        option.set_topics(vec![self.topic.clone()]);
        option.set_consumer_group(self.group.clone());
        let mut consumer = SimpleConsumer::new(option, self.client())?;
        consumer.start().await?;
        Ok(consumer)
    }

    fn message(&self, body: &str) -> MessageBuilder {
        MessageBuilder::builder().set_topic(self.topic.clone()).set_body(body.as_bytes().to_vec())
    }

    /// Receives until there are as many messages or the time is over.
    async fn receive(&self, consumer: &SimpleConsumer, filter: &FilterExpression, count: usize, wait: Duration) -> Vec<MessageView> {
        let deadline = Instant::now() + wait;
        let mut found = vec![];
        while found.len() < count && Instant::now() < deadline {
            found.extend(self.receive_once(consumer, filter).await);
        }
        found
    }

    /// Receives and acknowledges messages.
    async fn received(&self, consumer: &SimpleConsumer, filter: &FilterExpression, count: usize, wait: Duration) -> Result<Vec<MessageView>, ClientError> {
        let deadline = Instant::now() + wait;
        let mut found = vec![];
        while found.len() < count && Instant::now() < deadline {
            let messages = self.receive_once(consumer, filter).await;
            for message in &messages {
                consumer.ack(message).await?;
            }
            found.extend(messages);
        }
        Ok(found)
    }

    async fn receive_once(&self, consumer: &SimpleConsumer, filter: &FilterExpression) -> Vec<MessageView> {
        match consumer.receive_with(&self.topic, filter, 16, INVISIBLE).await {
            Ok(messages) => messages,
            Err(error) => {
                eprintln!("{error}");
                tokio::time::sleep(Duration::from_millis(200)).await;
                vec![]
            }
        }
    }
}

fn all() -> FilterExpression {
    FilterExpression::new(FilterType::Tag, "*")
}

fn failed(error: &ClientError) -> Value {
    let code = error.context().iter().find(|(key, _)| *key == "code").map(|(_, value)| value.clone());
    json!({"error": format!("{:?}", error.kind()), "code": code, "text": error.to_string()})
}

fn outcome<T>(result: Result<T, ClientError>) -> Value {
    match result {
        Ok(_) => json!({"ok": true}),
        Err(error) => failed(&error),
    }
}

fn body(message: &MessageView) -> String {
    String::from_utf8_lossy(message.body()).to_string()
}

fn bodies(messages: &[MessageView]) -> Vec<String> {
    messages.iter().map(body).collect()
}

fn sorted(messages: &[MessageView]) -> Vec<String> {
    let mut found = bodies(messages);
    found.sort();
    found
}

fn attempts(messages: &[MessageView]) -> Vec<Value> {
    let mut rows: Vec<(String, i32)> = messages.iter().map(|one| (body(one), one.delivery_attempt())).collect();
    rows.sort();
    rows.into_iter().map(|(text, attempt)| json!([text, attempt])).collect()
}

/// What a consumer sees of a message, except ids and times.
fn shown(message: &MessageView) -> Value {
    let mut keys = message.keys().to_vec();
    keys.sort();
    let text = if message.body().len() < 100 { json!(body(message)) } else { json!(message.body().len()) };
    json!({
        "body": text, "tag": message.tag(), "keys": keys, "properties": message.properties(),
        "group": message.message_group(), "delivery_timestamp": message.delivery_timestamp().is_some(),
        "attempt": message.delivery_attempt(), "born_host": !message.born_host().is_empty(),
    })
}

fn all_shown(messages: &[MessageView]) -> Vec<Value> {
    let mut rows: Vec<&MessageView> = messages.iter().collect();
    rows.sort_by_key(|one| body(one));
    rows.into_iter().map(shown).collect()
}

fn now_s() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs() as i64)
}

async fn send_normal(peer: &Peer) -> Saw {
    let (producer, consumer) = (peer.producer().await?, peer.consumer().await?);
    let properties = HashMap::from([("colour", "green"), ("größe", "très grand 大")]);
    let plain = peer.message("plain").set_tag("TagA").set_keys(vec!["key1", "key2"]).set_properties(properties);
    let mut sent = vec![producer.send(plain.build()?).await?.message_id().to_string()];
    sent.push(producer.send(peer.message("bare").build()?).await?.message_id().to_string());
    sent.push(producer.send(peer.message(&"x".repeat(3_000_000)).build()?).await?.message_id().to_string());
    let messages = peer.received(&consumer, &all(), 3, PATIENCE).await?;
    let mut got: Vec<String> = messages.iter().map(|one| one.message_id().to_string()).collect();
    sent.sort();
    got.sort();
    Ok(json!({"ids": sent == got, "messages": all_shown(&messages)}))
}

async fn send_fifo(peer: &Peer) -> Saw {
    let producer = peer.producer().await?;
    for i in 0..6 {
        for group in ["one", "two"] {
            producer.send(peer.message(&format!("{group} {i}")).set_message_group(group).build()?).await?;
        }
    }
    let messages = peer.received(&peer.consumer().await?, &all(), 12, PATIENCE).await?;
    let order = |group: &str| -> Vec<String> {
        messages.iter().filter(|one| one.message_group() == Some(group)).map(body).collect()
    };
    Ok(json!({"orders": {"one": order("one"), "two": order("two")}, "first": all_shown(&messages).first()}))
}

async fn send_delay(peer: &Peer) -> Saw {
    let (producer, consumer) = (peer.producer().await?, peer.consumer().await?);
    let due = now_s() + 4;
    producer.send(peer.message("due").set_delivery_timestamp(due).build()?).await?;
    producer.send(peer.message("past").set_delivery_timestamp(due - 60).build()?).await?;
    let first = peer.received(&consumer, &all(), 1, PATIENCE).await?;
    let early = now_s() < due && bodies(&first).contains(&"due".to_string());
    let second = peer.received(&consumer, &all(), 2 - first.len(), PATIENCE).await?;
    let messages = [all_shown(&first), all_shown(&second)].concat();
    Ok(json!({"early": early, "messages": messages}))
}

async fn transaction(peer: &Peer) -> Saw {
    let asked = Arc::new(Mutex::new(vec![]));
    let noted = asked.clone();
    let checker = Box::new(move |_: String, message: MessageView| {
        let text = body(&message);
        noted.lock().unwrap().push(text.clone());
        if text.starts_with("commit") { TransactionResolution::COMMIT } else { TransactionResolution::ROLLBACK }
    });
    let mut producer = Producer::new_transaction_producer(peer.topics(), peer.client(), checker)?;
    producer.start().await?;
    let consumer = peer.consumer().await?;
    let mut ends = vec![];
    for text in ["commit now", "roll back now", "commit later", "roll back later"] {
        let message = MessageBuilder::transaction_message_builder(peer.topic.clone(), text.as_bytes().to_vec());
        let begun = producer.send_transaction_message(message.set_tag("TagA").build()?).await?;
        match text {
            "commit now" => ends.push(outcome(begun.commit().await)),
            "roll back now" => ends.push(outcome(begun.rollback().await)),
            _ => {}
        }
    }
    let mut messages = peer.received(&consumer, &all(), 2, PATIENCE).await?;
    messages.extend(peer.received(&consumer, &all(), 1, POLL).await?);
    let mut names = asked.lock().unwrap().clone();
    names.sort();
    names.dedup();
    Ok(json!({"ends": ends, "asked": names, "messages": all_shown(&messages)}))
}

async fn redelivery(peer: &Peer) -> Saw {
    let (producer, consumer) = (peer.producer().await?, peer.consumer().await?);
    for text in ["kept", "done"] {
        producer.send(peer.message(text).set_tag("TagA").build()?).await?;
    }
    let first = peer.receive(&consumer, &all(), 2, PATIENCE).await;
    for message in first.iter().filter(|one| body(one) == "done") {
        consumer.ack(message).await?;
    }
    let began = Instant::now();
    let again = peer.receive(&consumer, &all(), 1, PATIENCE).await;
    let early = began.elapsed() < INVISIBLE - Duration::from_secs(3);
    let mut late = Value::Null;
    for message in first.iter().filter(|one| body(one) == "kept") {
        late = outcome(consumer.ack(message).await);
    }
    for message in &again {
        consumer.ack(message).await?;
    }
    Ok(json!({"first": attempts(&first), "again": attempts(&again), "early": early, "ack_of_expired_handle": late}))
}

async fn filtered(peer: &Peer, filter: FilterExpression, wanted: usize) -> Saw {
    let (producer, consumer) = (peer.producer().await?, peer.consumer().await?);
    peer.receive(&consumer, &filter, 1, Duration::from_secs(1)).await;
    for i in 0..6 {
        let number = i.to_string();
        let properties = HashMap::from([("number", number.as_str()), ("colour", ["blue", "red"][i % 2])]);
        let message = peer.message(&format!("message {i}")).set_tag(["TagA", "TagB", "TagC"][i % 3]);
        producer.send(message.set_properties(properties).build()?).await?;
    }
    let messages = peer.received(&consumer, &filter, wanted, PATIENCE).await?;
    let more = peer.received(&consumer, &filter, 1, POLL).await?;
    Ok(json!({"messages": sorted(&messages), "more": bodies(&more)}))
}

async fn unknown_topic(peer: &Peer) -> Saw {
    let producer = peer.producer().await?;
    let missing = format!("{}_missing", peer.topic);
    let sent = producer.send(peer.message("lost").set_topic(missing.clone()).build()?).await;
    let consumer = peer.consumer().await?;
    let got = consumer.receive_with(&missing, &all(), 1, INVISIBLE).await;
    Ok(json!({"send": outcome(sent), "receive": outcome(got)}))
}

async fn wrong_type(peer: &Peer) -> Saw {
    let producer = peer.producer().await?;
    let fifo = producer.send(peer.message("a").set_message_group("one").build()?).await;
    let delay = producer.send(peer.message("b").set_delivery_timestamp(now_s() + 1).build()?).await;
    let normal = producer.send(peer.message("c").build()?).await;
    Ok(json!({"fifo": outcome(fifo), "delay": outcome(delay), "normal": outcome(normal)}))
}

async fn too_large(peer: &Peer) -> Saw {
    let producer = peer.producer().await?;
    let large = producer.send(peer.message(&"x".repeat(4 * 1024 * 1024 + 1)).build()?).await;
    let many: HashMap<String, String> = (0..129).map(|i| (format!("key{i}"), "value".to_string())).collect();
    let properties = producer.send(peer.message("many").set_properties(many).build()?).await;
    let reserved = HashMap::from([("UNIQ_KEY", "value")]);
    let reserved = producer.send(peer.message("reserved").set_properties(reserved).build()?).await;
    Ok(json!({"body": outcome(large), "properties": outcome(properties), "reserved": outcome(reserved)}))
}

async fn send_soon(peer: &Peer, producer: &Producer, first: usize, last: usize, sent: &Mutex<BTreeSet<String>>) {
    for i in first..last {
        let text = format!("message {i:02}");
        let deadline = Instant::now() + RESTART_PATIENCE;
        loop {
            let message = peer.message(&text).build().expect("a message");
            match producer.send(message).await {
                Ok(_) => break,
                Err(_) if Instant::now() > deadline => return,
                Err(_) => tokio::time::sleep(Duration::from_millis(500)).await,
            }
        }
        sent.lock().unwrap().insert(text);
    }
}

async fn restart(peer: &Peer) -> Saw {
    let (producer, sent) = (peer.producer().await?, Mutex::new(BTreeSet::new()));
    send_soon(peer, &producer, 0, 20, &sent).await;
    let consumer = peer.consumer().await?;
    let mut found: BTreeSet<String> = bodies(&peer.received(&consumer, &all(), 5, PATIENCE).await?).into_iter().collect();
    println!("{{\"restart\": true}}");
    let answered = tokio::task::spawn_blocking(|| std::io::stdin().read_line(&mut String::new()));
    let _ = tokio::join!(send_soon(peer, &producer, 20, 40, &sent), answered);
    let sent = sent.into_inner().unwrap();
    let deadline = Instant::now() + RESTART_PATIENCE;
    while !sent.is_subset(&found) && Instant::now() < deadline {
        for message in peer.receive(&consumer, &all(), 1, Duration::from_secs(10)).await {
            found.insert(body(&message));
            let _ = consumer.ack(&message).await;
        }
    }
    let lost: Vec<&String> = sent.difference(&found).collect();
    let unknown: Vec<&String> = found.difference(&sent).collect();
    Ok(json!({"sent": sent.len(), "lost": !lost.is_empty(), "unknown": unknown, "text": format!("lost: {lost:?}")}))
}

/// The runner tells of an account that may do everything; that of guest has the same secret and may do nothing.
async fn accounts(peer: &Peer) -> Saw {
    let variable = |name: &str| std::env::var(name).unwrap_or_default();
    let (name, secret) = (variable("ACCOUNT_NAME"), variable("ACCOUNT_SECRET"));
    let mine = peer.signed_by(Some((&name, &secret)));
    mine.producer().await?.send(mine.message("body").build()?).await?;
    let mut found = json!({"right": bodies(&mine.received(&mine.consumer().await?, &all(), 1, PATIENCE).await?)});
    let wrong = format!("not-{secret}");
    let others = [
        ("wrong_secret", Some((name.as_str(), wrong.as_str()))),
        ("unknown", Some(("nobody", secret.as_str()))),
        ("guest", Some(("guest", secret.as_str()))),
        ("none", None),
    ];
    for (case, account) in others {
        let other = peer.signed_by(account);
        let sent = async { other.producer().await?.send(other.message("body").build()?).await };
        let got = async { other.consumer().await?.receive_with(&other.topic, &all(), 1, INVISIBLE).await };
        found[case] = json!({"send": outcome(sent.await), "receive": outcome(got.await)});
    }
    Ok(found)
}

async fn run(name: &str, peer: &Peer) -> Saw {
    match name {
        "send_normal" => send_normal(peer).await,
        "send_fifo" => send_fifo(peer).await,
        "send_delay" => send_delay(peer).await,
        "transaction" => transaction(peer).await,
        "redelivery" => redelivery(peer).await,
        "filter_tag" => filtered(peer, FilterExpression::new(FilterType::Tag, "TagA || TagC"), 4).await,
        "filter_sql" => filtered(peer, FilterExpression::new(FilterType::Sql, "number > 1 AND colour = 'red'"), 2).await,
        "unknown_topic" => unknown_topic(peer).await,
        "wrong_type" => wrong_type(peer).await,
        "too_large" => too_large(peer).await,
        "restart" => restart(peer).await,
        "accounts" => accounts(peer).await,
        _ => Ok(json!({"supported": false})),
    }
}

#[tokio::main]
async fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    for name in &arguments[3..] {
        let peer = Peer {
            endpoints: arguments[1].clone(),
            topic: format!("T_{}{name}", arguments[2]),
            group: format!("G_{}{name}", arguments[2]),
            account: None,
        };
        let saw = run(name, &peer).await.unwrap_or_else(|error| {
            let mut found = failed(&error);
            found["broken"] = found["error"].take();
            found
        });
        println!("{}", json!({"name": name, "saw": saw}));
    }
}
